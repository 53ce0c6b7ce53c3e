"""What tables an app has on the device, and the SQL that makes them."""
