def add_up(numbers):
    """The sum, one number after the other."""
    total = 0
    for number in numbers:
        total += number
    return total
