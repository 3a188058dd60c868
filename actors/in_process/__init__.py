"""Sessions, memories and stores in the caller's process, without Ray: what `InProcess` needs beside the hosts."""
