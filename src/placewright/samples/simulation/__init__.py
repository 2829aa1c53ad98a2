"""What the judge knows: when a node ends, how ports queue, the timeline."""
