"""Speed of LightCC against gloo, MPI and oneCCL, and training by top-k."""
