"""The objects that callers use: session managers, sessions, execution handles; each blocking and asynchronous."""
