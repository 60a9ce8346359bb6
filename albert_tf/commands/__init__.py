"""The commands of the command line, one module each: `define_flags(flag_values)` and `run(flags)`."""
