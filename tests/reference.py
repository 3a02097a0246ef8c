"""The paper in plain loops: the oracle for everything vectorised. NumPy float64, one window at a time, no torch.

Legend: C channels (rows of the token grid), N patches per channel, L samples per patch, S stride (or the length of
a sequence), T samples per window, D width, H heads, E = D / H, P rows of the position table, V electrodes, M MLP.
"Alg. 2 l. 4" is a line of an algorithm of cerebro-paper.tex; "row 'pads'" is a row of a table in decisions.md.
Weights are a flat dict of arrays under the names of the torch state dict; `under` strips a prefix.
"""

import math
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Settings:
    attention: str = "alternating"  # or standard, two_axis, bottleneck
    heads: int = 12
    norm: str = "pre"  # or post; row 'norm'
    first_axis: str = "channels"  # or time: what layer 1 of alternating attention mixes; row 'axis order'
    eps: float = 1e-5
    squares: int = 1  # tokens per time step in the position table: 8 for square spectrogram patches
    decoder_heads: int | None = None  # None: as many as the encoder


def under(weights, prefix):
    """The weights whose names begin with `prefix`, without it."""
    return {name[len(prefix) :]: array for name, array in weights.items() if name.startswith(prefix)}


# --- 1. Windows and waveform patches (Section Tokenization) -----------------------------------------------------------


def n_patches(T, L, S):
    """N_p = floor((T - L) / S + 1); zero when the window is shorter than one patch."""
    return 0 if T < L else (T - L) // S + 1


def waveform_patches(x_CT, L, S):
    """P_{c,i}: samples i*S .. i*S + L - 1 of channel c; what is left over at the end is unused."""
    C, T = x_CT.shape
    N = n_patches(T, L, S)
    patches_CNL = np.zeros((C, N, L))
    for c in range(C):
        for i in range(N):
            for j in range(L):
                patches_CNL[c, i, j] = x_CT[c, i * S + j]
    return patches_CNL


def is_flat(x_T):
    """All samples equal. (A computed standard deviation of equal samples need not be exactly zero.)"""
    return max(x_T) == min(x_T)


def mean_of(values):
    return math.fsum(values) / len(values)


def std_of(values):
    """Population standard deviation: divided by n, not n - 1."""
    mean = mean_of(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))


def normalize(x_CT, kind="zscore", scale=None, fixed=100.0):
    """Row 'normalisation of a window'. `scale` is the recording's (kind "recording"), `fixed` is in microvolts."""
    C, T = x_CT.shape
    out_CT = np.zeros((C, T))
    for c in range(C):
        x_T = x_CT[c]
        mean, std, low, high, flat = mean_of(x_T), std_of(x_T), min(x_T), max(x_T), is_flat(x_T)
        for t in range(T):
            if kind == "zscore":
                out_CT[c, t] = 0.0 if flat else (x_T[t] - mean) / std
            elif kind == "recording":
                out_CT[c, t] = (x_T[t] - mean) / scale
            elif kind == "minmax":
                out_CT[c, t] = 0.0 if flat else 2.0 * (x_T[t] - low) / (high - low) - 1.0
            elif kind == "scale":
                out_CT[c, t] = x_T[t] / fixed
            elif kind == "none":
                out_CT[c, t] = x_T[t]
            else:
                raise ValueError(f"unknown normalisation {kind!r}")
    return out_CT


# --- 2. Spectrogram patches (decisions, "Spectrograms"; appendix on phase) --------------------------------------------

WINDOW, HOP, REFLECTED, BINS, FLOOR = 128, 32, 48, 64, 1e-3


def spectrogram(x_CT):
    """(magnitude, phase), each (C, frames, 64): bins 1 to 64 of a Hann STFT with floor(T / 32) frames."""
    C, T = x_CT.shape
    frames = (T + 2 * REFLECTED - WINDOW) // HOP + 1
    # Periodic: the period is WINDOW, so the last sample is not a second zero.
    hann = np.array([0.5 - 0.5 * math.cos(2.0 * math.pi * j / WINDOW) for j in range(WINDOW)])
    magnitude, phase = np.zeros((C, frames, BINS)), np.zeros((C, frames, BINS))
    for c in range(C):
        if is_flat(x_CT[c]):
            continue  # zeros in both; else the window's own leakage of DC into bin 1 would be z-scored
        padded = np.pad(x_CT[c], REFLECTED, mode="reflect")
        size, angle = np.zeros((frames, BINS)), np.zeros((frames, BINS))
        for f in range(frames):
            spectrum = np.fft.rfft(hann * padded[f * HOP : f * HOP + WINDOW])
            for b in range(BINS):
                size[f, b] = abs(spectrum[b + 1])  # no DC
                angle[f, b] = np.angle(spectrum[b + 1]) / math.pi
                if angle[f, b] == -1.0:
                    angle[f, b] = 1.0  # one end of the circle: the real Nyquist bin may carry an imaginary -0
        ordered = sorted(size.ravel())
        median = ordered[(len(ordered) - 1) // 2]  # the lower one of two
        if median == 0.0:
            continue  # silent in more than half of its bins: no floor for the logarithm, so flat
        logs = np.zeros((frames, BINS))
        for f in range(frames):
            for b in range(BINS):
                logs[f, b] = math.log(max(size[f, b], FLOOR * median))
        if is_flat(logs.ravel()):
            continue
        mean, std = mean_of(logs.ravel()), std_of(logs.ravel())
        for f in range(frames):
            for b in range(BINS):
                magnitude[c, f, b] = (logs[f, b] - mean) / std
                phase[c, f, b] = angle[f, b]
    return magnitude, phase


def time_patches(spectrum_CFB):
    """Time bins: one frame is one patch of 64 values."""
    C, frames, bins = spectrum_CFB.shape
    patches_CNL = np.zeros((C, frames, bins))
    for c in range(C):
        for f in range(frames):
            for b in range(bins):
                patches_CNL[c, f, b] = spectrum_CFB[c, f, b]
    return patches_CNL


def square_patches(spectrum_CFB, side=8):
    """Squares of 8 frames x 8 bins; token t * 8 + f; inside a patch the bin runs fastest; frames left over: unused."""
    C, frames, bins = spectrum_CFB.shape
    times, rows = frames // side, bins // side
    patches_CNL = np.zeros((C, times * rows, side * side))
    for c in range(C):
        for t in range(times):
            for f in range(rows):
                for i in range(side):
                    for j in range(side):
                        value = spectrum_CFB[c, t * side + i, f * side + j]
                        patches_CNL[c, t * rows + f, i * side + j] = value
    return patches_CNL


def phase_layout(n_channels, order):
    """The 2C rows with phase, as (channel, whether this row is its phase): the appendix's two orders."""
    if order == "interleaved":
        return [(c, is_phase) for c in range(n_channels) for is_phase in (False, True)]
    if order == "separated":
        return [(c, is_phase) for is_phase in (False, True) for c in range(n_channels)]
    raise ValueError(f"unknown order {order!r}")


def with_phase(magnitude, phase, order):
    """(C, ...) and (C, ...) -> (2C, ...), spectrograms or their patches."""
    rows = [phase[c] if is_phase else magnitude[c] for c, is_phase in phase_layout(len(magnitude), order)]
    return np.stack(rows)


# --- 3. Positions (row 'positions') -----------------------------------------------------------------------------------


def positions(table_PD, n, squares=1):
    """n rows: the first n of the table, or the table stretched linearly along time for each frequency row apart.

    Half-pixel convention: the centre of output step t lies at (t + 1/2) * P' / n' - 1/2 of the P' input steps;
    before the first centre and after the last the nearest row is repeated.
    """
    P, D = table_PD.shape
    out_ND = np.zeros((n, D))
    if n <= P:
        for row in range(n):
            out_ND[row] = table_PD[row]
        return out_ND
    if n % squares or P % squares:
        raise ValueError(f"{n} tokens and {P} positions must both be multiples of {squares}")
    times_in, times_out = P // squares, n // squares
    for f in range(squares):
        for t in range(times_out):
            source = max((t + 0.5) * times_in / times_out - 0.5, 0.0)
            before = min(math.floor(source), times_in - 1)
            after = min(before + 1, times_in - 1)
            share = source - before
            left_D, right_D = table_PD[before * squares + f], table_PD[after * squares + f]
            out_ND[t * squares + f] = (1.0 - share) * left_D + share * right_D
    return out_ND


# --- 4. Attention of one sequence -------------------------------------------------------------------------------------


def softmax(scores_S):
    """-inf counts as hidden; a row that is hidden altogether gives zeros (row 'pads')."""
    peak = max(scores_S)
    if peak == -math.inf:
        return np.zeros(len(scores_S))
    powers = np.array([0.0 if score == -math.inf else math.exp(score - peak) for score in scores_S])
    return powers / math.fsum(powers)


def attention_map(q_SE, k_SE, keep_S=None):
    """softmax(q k^T / sqrt(E)) with -inf on the keys that are not kept. (queries, keys)"""
    queries, E = q_SE.shape
    keys = len(k_SE)
    map_SS = np.zeros((queries, keys))
    for i in range(queries):
        scores = [q_SE[i] @ k_SE[j] / math.sqrt(E) if keep_S is None or keep_S[j] else -math.inf for j in range(keys)]
        map_SS[i] = softmax(scores)
    return map_SS


def mix(map_SS, v_SE):
    """Each query's weighted sum of values."""
    out_SE = np.zeros((len(map_SS), v_SE.shape[1]))
    for i in range(len(map_SS)):
        for j in range(len(v_SE)):
            if map_SS[i, j] > 0.0:  # a hidden key contributes nothing, whatever its value holds
                out_SE[i] += map_SS[i, j] * v_SE[j]
    return out_SE


def attend(q_SE, k_SE, v_SE, keep_S=None):
    """One head, one sequence."""
    return mix(attention_map(q_SE, k_SE, keep_S), v_SE)


def linear(x, weight, bias):
    """One token."""
    return weight @ x + bias


def qkv_of(x_D, weights, name="qkv"):
    """Q, K and V of one token, each (D,): the rows of the projection are ordered q, k, v."""
    D = len(x_D)
    rows = linear(x_D, weights[f"{name}.weight"], weights[f"{name}.bias"])
    return rows[:D], rows[D : 2 * D], rows[2 * D :]


def multi_head(x_SD, weights, heads, keep_S=None, name="qkv"):
    """Heads side by side, before the output projection; head h owns entries h*E .. (h+1)*E of Q, K and V."""
    S, D = x_SD.shape
    E = D // heads
    q_SD, k_SD, v_SD = np.zeros((S, D)), np.zeros((S, D)), np.zeros((S, D))
    for s in range(S):
        q_SD[s], k_SD[s], v_SD[s] = qkv_of(x_SD[s], weights, name)
    out_SD = np.zeros((S, D))
    for h in range(heads):
        own = slice(h * E, (h + 1) * E)
        out_SD[:, own] = attend(q_SD[:, own], k_SD[:, own], v_SD[:, own], keep_S)
    return out_SD


# --- 5. The four kinds on a grid (Algorithms 1 to 3) ------------------------------------------------------------------
# `real` (C,) is False for padded channels, `visible` (C, N) is False for tokens hidden as keys; None means all True.


def key_grid(x_CND, real=None, visible=None):
    """Which tokens may be keys: those of real channels that are not hidden."""
    C, N, _ = x_CND.shape
    keys_CN = np.ones((C, N), dtype=bool)
    for c in range(C):
        for n in range(N):
            keys_CN[c, n] = (real is None or real[c]) and (visible is None or visible[c, n])
    return keys_CN


def over_channels(x_CND, weights, heads, keys_CN, name="qkv"):
    """Alg. 1 l. 3-5: N sequences of C tokens."""
    out_CND = np.zeros_like(x_CND)
    for n in range(x_CND.shape[1]):
        out_CND[:, n] = multi_head(x_CND[:, n], weights, heads, keys_CN[:, n], name)
    return out_CND


def over_time(x_CND, weights, heads, keys_CN, name="qkv"):
    """Alg. 1 l. 7-9: C sequences of N tokens."""
    out_CND = np.zeros_like(x_CND)
    for c in range(x_CND.shape[0]):
        out_CND[c] = multi_head(x_CND[c], weights, heads, keys_CN[c], name)
    return out_CND


def project_out(mixed_CND, weights, real=None):
    """The output projection, then zeros for padded queries: not even its bias reaches them."""
    C, N, D = mixed_CND.shape
    out_CND = np.zeros((C, N, D))
    for c in range(C):
        for n in range(N):
            if real is None or real[c]:
                out_CND[c, n] = linear(mixed_CND[c, n], weights["out.weight"], weights["out.bias"])
    return out_CND


def alternating(x_CND, layer_number, weights, heads, real=None, visible=None, first_axis="channels"):
    """Algorithm 1. Layers count from 1: odd ones mix channels, even ones time (or the other way round)."""
    keys_CN = key_grid(x_CND, real, visible)
    is_odd = layer_number % 2 == 1
    mixes_channels = is_odd == (first_axis == "channels")
    axis = over_channels if mixes_channels else over_time
    return project_out(axis(x_CND, weights, heads, keys_CN), weights, real)


def standard(x_CND, layer_number, weights, heads, real=None, visible=None, first_axis="channels"):
    """All C*N tokens are one sequence; the layer's number does not matter."""
    C, N, D = x_CND.shape
    keys_CN = key_grid(x_CND, real, visible)
    sequence, keep = np.zeros((C * N, D)), np.zeros(C * N, dtype=bool)
    for c in range(C):
        for n in range(N):
            sequence[c * N + n], keep[c * N + n] = x_CND[c, n], keys_CN[c, n]
    mixed = multi_head(sequence, weights, heads, keep)
    mixed_CND = np.zeros((C, N, D))
    for c in range(C):
        for n in range(N):
            mixed_CND[c, n] = mixed[c * N + n]
    return project_out(mixed_CND, weights, real)


def two_axis(x_CND, layer_number, weights, heads, real=None, visible=None, first_axis="channels"):
    """Algorithm 2: both axes in every layer, each with its own Q, K and V, then one shared output projection."""
    keys_CN = key_grid(x_CND, real, visible)
    a1_CND = over_channels(x_CND, weights, heads, keys_CN, "qkv")  # l. 3-4
    a2_CND = over_time(x_CND, weights, heads, keys_CN, "qkv_time")  # l. 5-6
    mixed_CND = np.zeros_like(x_CND)
    for c in range(x_CND.shape[0]):
        for n in range(x_CND.shape[1]):
            mixed_CND[c, n] = (a1_CND[c, n] + a2_CND[c, n]) / 2.0  # l. 8
    return project_out(mixed_CND, weights, real)


def mean_pool(x_SD, keep_S):
    """The mean of the kept rows; zeros where none is kept, and the caller then keeps the result out of the keys."""
    kept = [x_SD[s] for s in range(len(x_SD)) if keep_S[s]]
    return sum(kept) / len(kept) if kept else np.zeros(x_SD.shape[1])


def bottleneck(x_CND, layer_number, weights, heads, real=None, visible=None, first_axis="channels"):
    """Algorithm 3, literally; row 'bottleneck'. Its output cannot vary along time."""
    C, N, D = x_CND.shape
    E = D // heads
    keys_CN = key_grid(x_CND, real, visible)
    q_CND, k_CND, v_CND = np.zeros((C, N, D)), np.zeros((C, N, D)), np.zeros((C, N, D))
    for c in range(C):
        for n in range(N):
            q_CND[c, n], k_CND[c, n], v_CND[c, n] = qkv_of(x_CND[c, n], weights)  # l. 2
    has_key_C = [any(keys_CN[c, n] for n in range(N)) for c in range(C)]
    has_key_N = [any(keys_CN[c, n] for c in range(C)) for n in range(N)]
    mixed_CND = np.zeros((C, N, D))
    for h in range(heads):
        own = slice(h * E, (h + 1) * E)
        # l. 3: pooled over time, one query, key and value a channel
        q_CE = np.stack([mean_pool(q_CND[c, :, own], keys_CN[c]) for c in range(C)])
        k_CE = np.stack([mean_pool(k_CND[c, :, own], keys_CN[c]) for c in range(C)])
        v_CE = np.stack([mean_pool(v_CND[c, :, own], keys_CN[c]) for c in range(C)])
        a1_CE = attend(q_CE, k_CE, v_CE, has_key_C)  # l. 4
        # l. 5: pooled over channels, one query and key a time step
        q_NE = np.stack([mean_pool(q_CND[:, n, own], keys_CN[:, n]) for n in range(N)])
        k_NE = np.stack([mean_pool(k_CND[:, n, own], keys_CN[:, n]) for n in range(N)])
        map_NN = attention_map(q_NE, k_NE, has_key_N)  # one map, shared by all channels
        for c in range(C):
            a1_NE = np.stack([a1_CE[c] for _ in range(N)])  # l. 6: broadcast along time
            mixed_CND[c, :, own] = mix(map_NN, a1_NE)  # l. 7
    return project_out(mixed_CND, weights, real)


KINDS = {"alternating": alternating, "standard": standard, "two_axis": two_axis, "bottleneck": bottleneck}


# --- 6. The encoder ---------------------------------------------------------------------------------------------------


def layer_norm(x_D, weight, bias, eps=1e-5):
    mean = mean_of(x_D)
    variance = math.fsum((value - mean) ** 2 for value in x_D) / len(x_D)
    out_D = np.zeros(len(x_D))
    for d in range(len(x_D)):
        out_D[d] = (x_D[d] - mean) / math.sqrt(variance + eps) * weight[d] + bias[d]
    return out_D


def gelu(x):
    """Exact: x times the normal distribution function, elementwise."""
    x = np.asarray(x, dtype=float)
    flat = [0.5 * value * (1.0 + math.erf(value / math.sqrt(2.0))) for value in x.ravel()]
    return np.array(flat).reshape(x.shape)


def mlp(x_D, weights):
    hidden_M = gelu(linear(x_D, weights["up.weight"], weights["up.bias"]))
    return linear(hidden_M, weights["down.weight"], weights["down.bias"])


def each_token(function, x_CND):
    C, N, _ = x_CND.shape
    return np.stack([np.stack([function(x_CND[c, n]) for n in range(N)]) for c in range(C)])


def block(x_CND, layer_number, weights, settings, real=None, visible=None, heads=None):
    """One layer; `weights` holds norm1, attention, norm2, mlp. Row 'norm' and Section Model Architecture."""

    def norm(name, grid):
        return each_token(
            lambda x_D: layer_norm(x_D, weights[f"{name}.weight"], weights[f"{name}.bias"], settings.eps), grid
        )

    def attention(grid):
        kind = KINDS[settings.attention]
        own = under(weights, "attention.")
        return kind(grid, layer_number, own, heads or settings.heads, real, visible, settings.first_axis)

    def feed_forward(grid):
        return each_token(lambda x_D: mlp(x_D, under(weights, "mlp.")), grid)

    if settings.norm == "pre":
        x_CND = x_CND + attention(norm("norm1", x_CND))
        return x_CND + feed_forward(norm("norm2", x_CND))
    if settings.norm == "post":
        x_CND = norm("norm1", x_CND + attention(x_CND))
        return norm("norm2", x_CND + feed_forward(x_CND))
    raise ValueError(f"unknown norm {settings.norm!r}")


def run_blocks(x_CND, weights, settings, real=None, visible=None, heads=None):
    """Blocks 0, 1, ... (layers 1, 2, ...) and, for pre-norm only, the final LayerNorm."""
    i = 0
    while f"blocks.{i}.norm1.weight" in weights:
        x_CND = block(x_CND, i + 1, under(weights, f"blocks.{i}."), settings, real, visible, heads)
        i += 1
    if settings.norm == "pre":
        final = (weights["norm.weight"], weights["norm.bias"], settings.eps)
        x_CND = each_token(lambda x_D: layer_norm(x_D, *final), x_CND)
    return x_CND


def channel_embedding(pair, weights, is_phase=False):
    """An electrode's row, or the difference of two for a bipolar channel; id 0 is nobody and counts as zero."""
    anode, cathode = pair
    out_D = np.zeros(weights["electrodes"].shape[1])
    if anode != 0:
        out_D = out_D + weights["electrodes"][anode]
    if cathode != 0:
        out_D = out_D - weights["electrodes"][cathode]
    if is_phase:
        out_D = out_D + weights["phase"]
    return out_D


def log_ratio(x_CT, scale):
    """How large each channel of the raw window is beside its recording: log(std / scale) within [-5, 5]."""
    out_C = np.zeros(len(x_CT))
    for c in range(len(x_CT)):
        std = 0.0 if is_flat(x_CT[c]) else std_of(x_CT[c])
        out_C[c] = -5.0 if std == 0.0 else min(max(math.log(std / scale), -5.0), 5.0)
    return out_C


def add_places(x_CND, ids, weights, settings, phase_rows=None):
    """E^in = E + W_pos,i + W_chan,c (Section Tokenization)."""
    C, N, D = x_CND.shape
    places_ND = positions(weights["positions"], N, settings.squares)
    out_CND = np.zeros((C, N, D))
    for c in range(C):
        is_phase = phase_rows is not None and phase_rows[c]
        for n in range(N):
            out_CND[c, n] = x_CND[c, n] + places_ND[n] + channel_embedding(ids[c], weights, is_phase)
    return out_CND


def embed(patches_CNL, ids, weights, settings, real=None, masked=None, phase_rows=None, amplitude=None):
    """Patches to input tokens. [MASK] and [PAD] go in before the places are added, so both receive them."""
    C, N, _ = patches_CNL.shape
    x_CND = np.zeros((C, N, weights["embed.weight"].shape[0]))
    for c in range(C):
        for n in range(N):
            if real is not None and not real[c]:
                x_CND[c, n] = weights["pad_token"]
            elif masked is not None and masked[c, n]:
                x_CND[c, n] = weights["mask_token"]
            else:
                x_CND[c, n] = linear(patches_CNL[c, n], weights["embed.weight"], weights["embed.bias"])
    x_CND = add_places(x_CND, ids, weights, settings, phase_rows)
    if amplitude is not None:  # every token of a real channel, masked ones too
        for c in range(C):
            if real is None or real[c]:
                for n in range(N):
                    x_CND[c, n] += weights["amplitude.weight"][:, 0] * amplitude[c] + weights["amplitude.bias"]
    return x_CND


def encoder(patches_CNL, ids, weights, settings, real=None, masked=None, hidden=None, phase_rows=None, amplitude=None):
    """Features (C, N, D). `masked` tokens become [MASK]; `hidden` ones are no keys; `amplitude` is log_ratio's (C,).

    Features of padded channels are whatever the residual stream holds: nothing may read them.
    """
    x_CND = embed(patches_CNL, ids, weights, settings, real, masked, phase_rows, amplitude)
    visible = None if hidden is None else ~hidden
    return run_blocks(x_CND, weights, settings, real, visible)


# --- 7. Masks and loss (Section Pre-training; rows 'masking' and 'loss') ----------------------------------------------


def mask_count(ratio, n):
    """round(ratio * n) in double precision, halves to the even neighbour."""
    product = ratio * n
    below = math.floor(product)
    rest = product - below
    if rest == 0.5:
        return below if below % 2 == 0 else below + 1
    return below if rest < 0.5 else below + 1


def mask_from_noise(noise_CN, ratio, real=None):
    """The real tokens with the smallest noise; among equals the earlier (channel, patch) goes first."""
    C, N = noise_CN.shape
    tokens = [(noise_CN[c, n], c, n) for c in range(C) for n in range(N) if real is None or real[c]]
    masked_CN = np.zeros((C, N), dtype=bool)
    for _, c, n in sorted(tokens)[: mask_count(ratio, len(tokens))]:
        masked_CN[c, n] = True
    return masked_CN


def loss_of_batch(targets, predictions, masks, reals=None, alpha=0.1):
    """L = L_masked + alpha * L_visible over the tokens of all windows together: (total, masked part, visible part).

    A patch's error is the mean over its L values, not the sum of the paper's norm. A set without tokens counts zero.
    """
    masked_errors, visible_errors = [], []
    for w in range(len(targets)):
        C, N, L = targets[w].shape
        for c in range(C):
            if reals is not None and reals[w] is not None and not reals[w][c]:
                continue
            for n in range(N):
                error = math.fsum((targets[w][c, n, j] - predictions[w][c, n, j]) ** 2 for j in range(L)) / L
                (masked_errors if masks[w][c, n] else visible_errors).append(error)
    masked_part = mean_of(masked_errors) if masked_errors else 0.0
    visible_part = mean_of(visible_errors) if visible_errors else 0.0
    return masked_part + alpha * visible_part, masked_part, visible_part


def masked_loss(target_CNL, prediction_CNL, masked_CN, real=None, alpha=0.1):
    """One window's (total, masked part, visible part)."""
    return loss_of_batch([target_CNL], [prediction_CNL], [masked_CN], [real], alpha)


# --- 8. SimMIM and ViTMAE ---------------------------------------------------------------------------------------------


def simmim(patches_CNL, ids, weights, settings, masked, real=None, phase_rows=None, amplitude=None):
    """Reconstruction (C, N, L): [MASK] tokens run through the whole encoder, then one linear layer."""
    own = under(weights, "encoder.")
    features_CND = encoder(
        patches_CNL, ids, own, settings, real, masked=masked, phase_rows=phase_rows, amplitude=amplitude
    )
    return each_token(lambda x: linear(x, weights["reconstruct.weight"], weights["reconstruct.bias"]), features_CND)


def visible_features(patches_CNL, ids, weights, settings, masked, real=None, phase_rows=None, amplitude=None):
    """ViTMAE's encoder: (C, N, D) that means something only where a token is real and not masked.

    Standard attention: the other tokens are dropped. Other kinds: the grid stays, masked tokens are no keys.
    """
    C, N, _ = patches_CNL.shape
    if settings.attention != "standard":
        return encoder(
            patches_CNL, ids, weights, settings, real, hidden=masked, phase_rows=phase_rows, amplitude=amplitude
        )
    x_CND = embed(patches_CNL, ids, weights, settings, real, phase_rows=phase_rows, amplitude=amplitude)
    kept = [(c, n) for c in range(C) for n in range(N) if (real is None or real[c]) and not masked[c, n]]
    out_CND = np.zeros_like(x_CND)
    if kept:
        shorter = np.stack([x_CND[c, n] for c, n in kept])
        features = run_blocks(shorter[np.newaxis], weights, settings)[0]  # a grid of one row
        for s in range(len(kept)):
            out_CND[kept[s]] = features[s]
    return out_CND


def vitmae(patches_CNL, ids, weights, settings, masked, real=None, phase_rows=None, amplitude=None):
    """Reconstruction (C, N, L) by the decoder from the visible tokens' features; row 'ViTMAE style'."""
    C, N, _ = patches_CNL.shape
    own, decoder = under(weights, "encoder."), under(weights, "decoder.")
    x_CND = visible_features(patches_CNL, ids, own, settings, masked, real, phase_rows, amplitude)
    for c in range(C):
        for n in range(N):
            if real is not None and not real[c]:
                x_CND[c, n] = own["pad_token"]
            elif masked[c, n]:
                x_CND[c, n] = own["mask_token"]
    x_CND = add_places(x_CND, ids, own, settings, phase_rows)  # again, and for all tokens
    x_CND = each_token(lambda x: linear(x, decoder["embed.weight"], decoder["embed.bias"]), x_CND)
    x_CND = run_blocks(x_CND, decoder, settings, real, heads=settings.decoder_heads)
    return each_token(lambda x: linear(x, weights["reconstruct.weight"], weights["reconstruct.bias"]), x_CND)


# --- 9. The classifier (Section Fine-tuning) --------------------------------------------------------------------------


def pool(features_CND, real=None):
    """Global mean over the tokens of real channels."""
    C, N, _ = features_CND.shape
    tokens = [features_CND[c, n] for c in range(C) for n in range(N) if real is None or real[c]]
    return sum(tokens) / len(tokens)


def classify(features_CND, real, weights):
    return linear(pool(features_CND, real), weights["final_layer.weight"], weights["final_layer.bias"])


# --- 10. What one layer costs, counted while walking through it -------------------------------------------------------


def sequences_of(kind, C, N, layer_number=1, first_axis="channels"):
    """(queries, keys, how many value sequences share the map) of every attention map that a layer computes a head."""
    if kind == "standard":
        return [(C * N, C * N, 1)]
    channels = [(C, C, 1) for _ in range(N)]
    time = [(N, N, 1) for _ in range(C)]
    if kind == "alternating":
        return channels if (layer_number % 2 == 1) == (first_axis == "channels") else time
    if kind == "two_axis":
        return channels + time
    if kind == "bottleneck":
        return [(C, C, 1), (N, N, C)]  # Alg. 3 l. 4 once, l. 7: one map for the values of C channels
    raise ValueError(f"unknown attention {kind!r}")


def count_scores(kind, C, N, heads, layer_number=1, first_axis="channels"):
    """Attention scores that one layer holds for one window."""
    scores = 0
    for _ in range(heads):
        for queries, keys, _ in sequences_of(kind, C, N, layer_number, first_axis):
            for _ in range(queries):
                for _ in range(keys):
                    scores += 1
    return scores


def count_flops(kind, C, N, D, heads, layer_number=1, first_axis="channels"):
    """(QK^T and AV, projections) of one layer and one window, 2 per multiply-add. Pools and softmax are not counted."""
    E = D // heads
    attention = projections = 0
    for _ in range(heads):
        for queries, keys, values in sequences_of(kind, C, N, layer_number, first_axis):
            for _ in range(queries):
                for _ in range(keys):
                    attention += 2 * E  # one score: a dot product of E terms
                    for _ in range(values):
                        attention += 2 * E  # one value scaled and added
    matrices = ["q", "k", "v", "out"] + (["q_time", "k_time", "v_time"] if kind == "two_axis" else [])
    for _ in range(C * N):
        for _ in matrices:
            for _ in range(D):
                projections += 2 * D  # one row of the matrix times one token
    return attention, projections
