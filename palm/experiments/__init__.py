"""Many runs: ways of training compared, settings searched; each run is a process of its own."""
