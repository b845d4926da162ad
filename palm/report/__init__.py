"""What a run was and did, for people to look at: plots, and a page about where its models are wrong."""
