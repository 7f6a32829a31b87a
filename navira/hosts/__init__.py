"""Policies inside other libraries: pipelines, servers and samplers that run their own network. And
samplers of others, played on recorded cases."""
FOLDER = __path__[0]    # for `model.generate(custom_generate=...)` of transformers
