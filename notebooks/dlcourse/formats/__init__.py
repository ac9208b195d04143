"""File formats beside TFRecord, as lesson 40 compares them; `dlguide.data.formats` finds them."""
