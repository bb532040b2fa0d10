"""Optional tools beyond μP and MuSOAP. They import the core, but the core never imports them."""
