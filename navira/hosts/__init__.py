"""Policies inside other libraries: pipelines, servers and samplers that run their own network. And
samplers of others, played on recorded cases."""
