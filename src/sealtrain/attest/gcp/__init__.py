"""dstack guests on Google's machines with TDX: Intel's quote and the vTPM's quote of it."""
