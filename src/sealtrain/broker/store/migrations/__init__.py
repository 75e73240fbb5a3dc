"""The steps that bring a broker's database from any earlier version to the current one."""
