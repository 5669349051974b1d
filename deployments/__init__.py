"""The application on Ray Serve: the only package that imports ray, and thin."""
