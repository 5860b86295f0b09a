"""DeepSeek-V4.1 that verifies and drafts in one graph per step.

Names, fields and order follow MAX's nightly page `unified_dspark_deepseekV41`.
"""
