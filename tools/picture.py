"""The picture that moves on the front page: two policies write one Sudoku, from the same passes and the same seed.

    python tools/picture.py            # nbs/images/sudoku.gif, and its last frame as sudoku.png
"""
from pathlib import Path
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFont
import navira
from navira.tasks.task import task_of
from navira.tasks.sudoku import Sudoku

POLICIES, TASK, PASSES, CELL = ('backbone', 'p2'), 'sudoku-35', 27, 30
INK, GREY, BLUE, RED, PINK, ORANGE = '#222222', '#e9e9e9', '#0072B2', '#C00000', '#f6caca', '#F0B060'
fonts = Path(get_data_path())/'fonts'/'ttf'
small, large = (ImageFont.truetype(str(fonts/'DejaVuSans.ttf'), size) for size in (14, 18))

def telling(model, task, n=100):
    "The first puzzle that the first policy gets wrong and the second right, and both runs of it."
    puzzles = task.prompts(0, n)
    runs = [navira.sample(model, p, PASSES, n, seed=0, prompt=puzzles, trace=True, progress=False) for p in POLICIES]
    wrong, right = (task.solved(r.tokens, 0) for r in runs)
    tells = ~wrong.astype(bool) & right.astype(bool)
    assert tells.any(), f'no puzzle of {n} tells {POLICIES} apart'
    k = int(tells.argmax())
    return k, puzzles[k], [r.trace for r in runs]

def clashing(grid):
    "Cells whose digit stands twice in a row, column or box."
    units = [[c for c in unit if grid[c] < 9] for unit in Sudoku().units]
    return {c for unit in units for c in unit if sum(grid[c] == grid[d] for d in unit) > 1}

def draw_grid(draw, left, top, grid, given, remasked, wrong):
    for c, digit in enumerate(grid):
        x, y = left + c % 9 * CELL, top + c // 9 * CELL
        fill = PINK if c in wrong else GREY if given[c] else ORANGE if remasked[c] else 'white'
        draw.rectangle([x, y, x + CELL, y + CELL], fill=fill, outline='#bbbbbb')
        colour = RED if c in wrong else INK if given[c] else BLUE
        if digit < 9: draw.text((x + CELL / 2, y + CELL / 2), str(digit + 1), colour, large, anchor='mm')
    for i in range(0, 10, 3):
        draw.line([left + i * CELL, top, left + i * CELL, top + 9 * CELL], INK, 2)
        draw.line([left, top + i * CELL, left + 9 * CELL, top + i * CELL], INK, 2)

def frame(puzzle, k, traces, t):
    "Both grids of puzzle k after t passes."
    image = Image.new('RGB', (2 * 9 * CELL + 60, 9 * CELL + 90), 'white')
    draw = ImageDraw.Draw(image)
    for side, (name, trace) in enumerate(zip(POLICIES, traces)):
        left, grid = 15 + side * (9 * CELL + 30), trace.x[t, k].tolist()
        last = t == trace.T
        wrong = clashing(grid)
        taken = trace.remasked[:t, k].sum().item()
        remasked = trace.remasked[t - 1, k].tolist() if 0 < t < trace.T else [False] * 81
        draw_grid(draw, left, 45, grid, (puzzle != 9).tolist(), remasked, wrong)
        draw.text((left, 12), name, INK, large)
        draw.text((left + 9 * CELL, 14), f'pass {t} of {trace.T}', INK, small, anchor='ra')
        said = ('wrong: red digits clash' if wrong else 'solved') if last else f'remasked so far: {taken}'
        draw.text((left, 45 + 9 * CELL + 10), said, RED if last and wrong else INK, small)
    return image

if __name__ == '__main__':
    model = navira.load('sudoku')
    task = task_of(TASK, model)
    k, puzzle, traces = telling(model, task)
    frames = [frame(puzzle, k, traces, t) for t in range(PASSES + 1)]
    every = Image.new('RGB', (frames[0].width, frames[0].height * len(frames)))     # a palette of all frames' colours
    for t, f in enumerate(frames): every.paste(f, (0, t * f.height))
    palette = every.quantize(128)
    frames = [f.quantize(palette=palette, dither=0) for f in frames]
    folder = Path(__file__).resolve().parent.parent/'nbs'/'images'
    folder.mkdir(exist_ok=True)
    times = [1200] + [350] * (PASSES - 1) + [4000]
    frames[0].save(folder/'sudoku.gif', save_all=True, append_images=frames[1:], duration=times, loop=0, optimize=True)
    frames[-1].save(folder/'sudoku.png', optimize=True)
    print(f'puzzle {k}: {(folder/"sudoku.gif").stat().st_size / 1e3:.0f} kB')
