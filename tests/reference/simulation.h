/// Every policy of the papers, and the released code where it differs, as a plain function of a text's
/// attention logits. Slow, in double. Tests compare the engine's scoring and selection with it. Written from
/// policies, section 2; shares no code with the engine. A paper's policy drops tokens from a set. Released
/// mask codes are simulated as they work: masks and scores over all columns, with zeros, nothing dropped.
#pragma once

#include "tests/reference/position_set.h"
#include "tests/reference/reference_policy.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace reference {

/// Everything that a policy sees of a model and a text. Row i is the query of token i.
struct Observed {
    int n_layers = 1;
    int n_heads = 1;     ///< per layer
    int n_kv_heads = 1;  ///< per layer
    int n_prompt = 1;
    int n_rows = 0;
    Vector logits;  ///< [row][layer][query head][n_rows positions]; NaN where a recorded lane did not look

    double& logit(int row, int layer, int head, int position);
    double logit(int row, int layer, int head, int position) const;
};

/// Uniform logits in (-spread, spread), different in every cell; masks only the future.
Observed random_logits(int n_layers, int n_heads, int n_kv_heads, int n_prompt, int n_rows, double spread,
                       std::uint64_t seed);

/// zeta of (layer, query head, row, position).
using NoiseOf = std::function<double(int layer, int head, int row, int position)>;
NoiseOf no_noise();
NoiseOf drawn_noise(Noise noise, bool per_row, std::uint64_t seed);

/// Temperature at decode row t = 1, 2, ...; t = 0 is the prompt.
using Tau = std::function<double(int t)>;
Tau constant_tau(double tau);
Tau linear_tau(double begin, double end, int horizon);  ///< Keyformer, section 3; held at `end`
Tau cosine_tau(double begin, double end, int horizon);
Tau tau_through(std::vector<std::pair<double, double>> points);  ///< (t, tau), straight between, held outside
Tau released_tau(double begin, double end, int horizon);         ///< begin + t * delta, never held

/// Query heads whose scores are pooled, and the KV heads that keep the set so selected; each as (layer,
/// head).
struct Readers {
    std::vector<std::pair<int, int>> heads;
    std::vector<std::pair<int, int>> kv_heads;
};
std::vector<Readers> selected_together(const Observed& text, Unit unit);

/// When to evict: once after the prompt and then every `every` rows; stepwise: the same rhythm within the
/// prompt too.
struct Cadence {
    bool stepwise = false;
    int every = 1;
    bool evicts_after(int row, int n_prompt) const;
};

/// Tokens that never compete; they count in the budget.
struct Protect {
    int first = 0;
    int newest = 0;
};

struct SimulatedRow {
    PositionSet visible;  ///< positions the row attended to, itself included unless a code hides it
    PositionSet kept;     ///< after the eviction that follows the row
    Vector scores;        ///< [position <= row] pooled, before the eviction; empty where the policy has none
    /// (worst kept score - best evicted score) / worst kept score; infinite where nothing competes.
    double margin = 0;
};
using Simulated = std::vector<SimulatedRow>;  ///< [row]

// --- papers ------------------------------------------------------------------------------------------------

Simulated full(const Observed& text);
/// The k newest (policies 2.2).
Simulated window(const Observed& text, int k, Cadence when);
/// The first `sinks` and the newest k - sinks (StreamingLLM, policies 2.3).
Simulated sink_and_window(const Observed& text, int k, int sinks, Cadence when);
/// Row i sees i, i-(d+1), i-2(d+1), ...: w of them (policies 2.4). The span between them stays stored. Rows
/// of a one-shot prompt see all.
Simulated dilated(const Observed& text, int w, int d, Cadence when);
/// Best k by summed attention, none protected (policies 2.5).
Simulated key_only(const Observed& text, const Readers& unit, int k, PoolOver pool, Cadence when);
/// The newest w and the best of the others by summed attention, k in all (policies 2.6).
Simulated h2o(const Observed& text, const Readers& unit, int k, Protect protect, PoolOver pool, Cadence when);
/// The k best of the last row (policies 2.7).
Simulated tova(const Observed& text, const Readers& unit, int k, Protect protect, PoolOver pool,
               Cadence when);
struct KeyformerScore {
    Tau tau;
    NoiseOf noise;
    double gain = 1;
    double damping = 1;  ///< applies to decode rows
};
/// As h2o, by summed softmax((x + gain * zeta) / tau) (policies 2.8, Algorithm 1).
Simulated keyformer(const Observed& text, const Readers& unit, int k, Protect protect,
                    const KeyformerScore& score, PoolOver pool, Cadence when);
/// Best k by A <- alpha * A + p (policies 2.9).
Simulated a2sf(const Observed& text, const Readers& unit, int k, Protect protect, double alpha, PoolOver pool,
               Cadence when);

/// A lane with commands of its user. All running scores (sum, forgetting sum, tempered sum, both) accumulate
/// through every change with the alpha, tau and noise in force. A policy switched on in mid-run thus finds
/// its own score (policies, section 2.12).
enum class By { sum, forgetting, tempered };
struct Regime {
    int from_row = 0;  ///< set before this row; evicts down to k at once
    By by = By::sum;
    int k = 1;
    Protect protect;
    double alpha = 1;
    KeyformerScore tempering{constant_tau(1), no_noise()};
};
/// A user command after a row and its eviction. Pinned positions are never evicted and count in k.
struct ManualChange {
    enum Act { evict, pin, unpin };
    int after_row = 0;
    Act act = pin;
    int position = 0;
};
Simulated steered(const Observed& text, const Readers& unit, const std::vector<Regime>& regimes,
                  const std::vector<ManualChange>& hands, PoolOver pool);

// --- released code, read once over the prompt, then after every row ---------------------------------------

/// H2O's mask with no heavy tokens (policies 2.2): sees the k newest, itself included.
Simulated released_window(const Observed& text, int k);
/// StreamingLLM kv_cache.py: slices [0, start) and [len - recent, len) once len > start + recent
/// (policies 2.3).
Simulated released_sink(const Observed& text, int start, int recent);
/// H2O utils_hh: the one-row blink (policies 2.6, fact 5). `kept` holds every column whose score is kept.
Simulated released_h2o(const Observed& text, const Readers& unit, int heavy, int recent, PoolOver pool);
/// TOVA's tova_cache.py: mean over the query heads of the layer, top k of the last row (policies 2.7).
Simulated released_tova(const Observed& text, const Readers& layer, int k);
/// Keyformer attention.py: the frozen keys (policies 2.8, facts 2 and 3).
Simulated released_keyformer(const Observed& text, const Readers& unit, int k, int w,
                             const KeyformerScore& score, PoolOver pool);
/// A2SF-24 utils_hh: the forced newest token (policies 2.9). k = select + recent.
Simulated released_a2sf(const Observed& text, const Readers& unit, int k, int recent, double alpha,
                        PoolOver pool);

}  // namespace reference
