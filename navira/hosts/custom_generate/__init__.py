"For `model.generate` of transformers: the file that `custom_generate=FOLDER` names."
