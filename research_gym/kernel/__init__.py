"""What runs inside the sandbox: the supervisor (pid 1), the kernels behind it, and the frames they speak."""
