"""Web console: pages for people, from the same data, routes and roles as the API."""
