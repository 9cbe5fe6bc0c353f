"""For each exercise an answer that a learner may well give, and that is wrong."""

WRONG = {
    "01_device": {
        "exercise-1": "x = torch.ones(2, 3)\nmoved = x",
        "exercise-2": "answer = [True, True, True]",
    },
    "02_random_dataset": {
        "exercise-1": "answer = [16] * 6",
        "exercise-2": "my_batch_size = 30",
    },
    "03_model": {
        "exercise-1": "answer = 15",
        "exercise-2": "class Flatten(nn.Module):\n    def forward(self, images):\n        return images.view(30, -1)",
    },
    "04_data_parallel": {
        "exercise-1": "answer = [3, 3, 2, 2]",
        "exercise-2": "idle = 0",
        "exercise-3": "my_batch_size = 40",
    },
    "05_four_steps": {
        "exercise-1": 'order = "BDAC"',
        "exercise-2": "def my_gather(outputs):\n    return torch.stack(outputs, dim=0).flatten(0, 1)",
    },
    "06_gradients": {
        "exercise-1": 'letter = "A"',
        "exercise-2": "class Mended(nn.Module):\n    def __init__(self, model):\n        super().__init__()\n        self.model = model\n\n    def forward(self, x, y):\n        squares = (self.model(x) - y).pow(2)\n        return squares.mean().view(1)",
    },
    "07_replicas": {
        "exercise-1": 'class Counter(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(5, 2)\n        self.register_buffer("calls", torch.tensor(0))\n\n    def forward(self, x):\n        self.calls = self.calls + 1\n        return self.fc(x)',
        "exercise-2": "running_mean = 9.0",
        "exercise-3": 'class TwoPaths(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.image_module = nn.Linear(5, 2)\n        self.text_module = nn.Linear(5, 2)\n\n\nsaved = nn.DataParallel(TwoPaths())\ncheckpoint = saved.state_dict()\nrepaired = {key.replace("module.", ""): tensor for key, tensor in checkpoint.items()}',
    },
    "08_inputs_outputs": {
        "exercise-1": 'answer = ["cut", "cut", "repeated", "repeated"]',
        "exercise-2": 'class AttentionWithMask(nn.Module):\n    def __init__(self, mask):\n        super().__init__()\n        self.register_buffer("mask", mask)\n\n    def forward(self, x, mask):\n        scores = x @ x.transpose(1, 2) + mask\n        return scores.softmax(dim=2) @ x\n\n\nmended = AttentionWithMask(mask)',
    },
    "09_cost": {
        "exercise-1": "megabytes = 2 * 4 * 30 * 4",
        "exercise-2": "my_rows = 4096",
    },
    "10_distributed": {
        "exercise-1": "answer = [2, 6]",
        "exercise-2": "factors = [0.5, 0.3, 0.2]",
    },
    "11_too_large": {
        "exercise-1": "gigabytes = 48",
        "exercise-2": "smallest = 8",
    },
    "12_choose": {
        "exercise-1": 'tool = "DDP"',
        "exercise-2": 'class Repaired(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.first = nn.Linear(5, 8)\n        self.last = nn.Linear(8, 1)\n        self.register_buffer("scale", torch.full((5,), 2.0))\n        self.register_buffer("steps", torch.tensor(0))\n\n    def forward(self, x, y):\n        self.steps = self.steps + 1\n        hidden = self.first(x * self.scale).relu()\n        return (self.last(hidden) - y).pow(2)',
    },
}
