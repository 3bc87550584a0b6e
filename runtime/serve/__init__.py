"""The HTTP and WebSocket server of `voxport serve`. It needs the extra `serve`. Nothing imports it."""
