"""Views of the fleet as a whole. Pure: data in, tables out."""
