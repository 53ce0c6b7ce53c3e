"""Who a request comes from: keys, and tokens checked against them."""
