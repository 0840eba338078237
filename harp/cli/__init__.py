"""The command `harp`: a module or a package for each subcommand."""
