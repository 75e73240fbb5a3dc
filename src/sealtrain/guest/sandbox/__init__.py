"""What a run gives up while it holds records: output, network, files, programs, system calls."""
