"""HTTP endpoints: Fish's API and the open server's."""
