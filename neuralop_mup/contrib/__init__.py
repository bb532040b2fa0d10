"""Optional tools beyond μP and MuSOAP. They import the core; the core never imports them."""
