"""HTTP: the application, its access control, and the uvicorn server that runs it."""
