"""Useful tools that are neither μP nor MuSOAP. They import the core; the core never imports them."""
