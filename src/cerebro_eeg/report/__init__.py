"""Reports and pictures of runs, stores and recordings. They show no path, no date and no free text of a file."""
