def reward(completion, label):
    digits = ""
    for character in completion.strip():
        if not character.isdigit():
            break
        digits += character
    right = digits == str(label)
    short = len(completion) <= 4
    return {"score": float(right), "acc": float(right), "short": float(short)}
