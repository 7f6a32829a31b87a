"Policies inside other people's samplers, and samplers of other people on recorded cases."
