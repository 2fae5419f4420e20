"""Rewards: plain functions of what a completion did, which TRL can call as they are."""
