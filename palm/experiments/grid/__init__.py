"""Many runs in one folder, each trained once by its own process, even after interruptions."""
