"""What servers of HTTP share: connections and bodies with limits, and who is answered."""
