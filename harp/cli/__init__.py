"""What the command `harp` does, a module a subcommand."""
