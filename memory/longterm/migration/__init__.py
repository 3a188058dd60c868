"""How the memories of another system become items of ours."""
