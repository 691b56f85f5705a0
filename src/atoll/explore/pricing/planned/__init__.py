"""The planner's layouts of a searched chip."""
