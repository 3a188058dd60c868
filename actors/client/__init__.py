"""What callers hold: managers, sessions, execution handles; each verb for those who block and those who await."""
