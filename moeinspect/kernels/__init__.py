"""Triton kernels: a public function, a private `@triton.jit` file and a torch twin each."""
