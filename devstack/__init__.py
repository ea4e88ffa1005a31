"""Everything outside the application on one machine, without Docker: for the demo and the tests."""
