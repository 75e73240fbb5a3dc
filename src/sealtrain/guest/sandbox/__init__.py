"""The sandbox of a run that holds records: output, network, files, programs, system calls."""
