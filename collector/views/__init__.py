"""Views: what the fleet looks like as a whole. Pure: data in, tables out."""
