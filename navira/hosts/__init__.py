"Policies inside other libraries: pipelines, servers and samplers that run their own network."
FOLDER = __path__[0]    # for `model.generate(custom_generate=...)` of transformers
