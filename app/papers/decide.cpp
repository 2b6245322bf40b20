#include "app/papers/figure.h"
#include "engine/eval/sign_flips.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

using State = PaperVerdict::State;

/// Of the comparisons of a finding.
struct Counts {
    int n = 0, ahead = 0, behind = 0;  ///< surely
    int leads = 0, trails = 0;         ///< by the mean, sure or not
};

Counts counted(const SignFlips& test) {
    Counts counts;
    for (const SignFlips::Comparison& one : test.comparisons) {
        ++counts.n;
        const bool sure = one.p <= kSureP;
        counts.leads += one.lead > 0 ? 1 : 0;
        counts.trails += one.lead < 0 ? 1 : 0;
        counts.ahead += sure && one.lead > 0 ? 1 : 0;
        counts.behind += sure && one.lead < 0 ? 1 : 0;
    }
    return counts;
}

/// A finding is about most of the comparisons: a sure mean may come from a few of them.
State state_of(const SignFlips& test, const Counts& counts, int n_samples) {
    if (n_samples < kLeastSamples || (test.n_telling > 0 && test.n_telling < kLeastSamples))
        return State::few;
    if (counts.ahead > 0 && counts.behind > 0) return State::mixed;
    if (test.together.p > kSureP) return State::open;
    if (test.together.lead > 0 && 2 * counts.leads > counts.n && counts.behind == 0) return State::holds;
    if (test.together.lead < 0 && 2 * counts.trails > counts.n && counts.ahead == 0) return State::fails;
    return State::open;
}

std::string p_text(double p) {
    return p < 0.001 ? "p < 0.001" : fmt::format("p = {:.3f}", p);
}

/// Returns why a sure mean decides nothing; empty if it does, or if it is not sure.
std::string_view reservation(const SignFlips& test, const Counts& counts, State state) {
    if (state != State::open || test.together.p > kSureP) return "";
    const int against = test.together.lead > 0 ? counts.behind : counts.ahead;
    return against > 0 ? ", but not in every comparison" : ", but not in more than half of the comparisons";
}

std::string together_text(const SignFlips& test, const Counts& counts, State state) {
    const std::string_view found = test.together.p > kSureP ? "neither surely ahead nor surely behind"
                                   : test.together.lead > 0 ? "surely ahead"
                                                            : "surely behind";
    return fmt::format("All together it is {} ({}){}.", found, p_text(test.together.p),
                       reservation(test, counts, state));
}

std::string few_text(const SignFlips& test, int n_samples, const std::string& samples) {
    if (n_samples < kLeastSamples)
        return fmt::format("At least {} {} are needed to decide anything.", kLeastSamples, samples);
    return fmt::format("They differ in {} of the {}; at least {} are needed to decide anything.",
                       test.n_telling, samples, kLeastSamples);
}

/// Returns how many samples would decide what these leave open; empty where more of them may not.
std::string more_text(const SignFlips& test, State state, int n_samples, std::string_view samples) {
    if (state != State::few && (state != State::open || test.together.p <= kSureP)) return "";
    const double z = test.together.spread > 0 ? test.together.lead / test.together.spread : 0;
    std::string text = needed_text(samples_needed(z, n_samples), test.together.lead, samples);
    text.front() = text.front() == 'a' ? 'A' : 'T';
    return fmt::format(" {}.", text);
}

}  // namespace

PaperVerdict decide(FigureRecord::Evidence evidence) {
    constexpr double kSteps = 1e6;  // of 1
    if (evidence.comparisons.empty()) return {State::open, "nothing that it compares was measured."};
    std::vector<Gains> gains;
    for (FigureRecord::Comparison& one : evidence.comparisons) {
        for (double& gain : one.gains) gain = std::isfinite(gain) ? std::round(gain * kSteps) / kSteps : 0;
        gains.push_back(one.gains);
    }
    const SignFlips test = sign_flips(gains);
    const Counts counts = counted(test);
    const auto n_samples = static_cast<int>(gains.front().size());
    const State state = state_of(test, counts, n_samples);
    const std::string_view samples = evidence.samples;  // "windows"
    std::string why = fmt::format(
        "{} is surely ahead in {} of {} comparison{} and surely behind in {}, by {} {}; its mean is "
        "higher in {} and lower in {}. ",
        evidence.subject, counts.ahead, counts.n, counts.n == 1 ? "" : "s", counts.behind, n_samples,
        samples.substr(0, samples.size() - (n_samples == 1 ? 1 : 0)), counts.leads, counts.trails);
    why += state == State::few ? few_text(test, n_samples, evidence.samples)
                               : together_text(test, counts, state);
    why += more_text(test, state, n_samples, samples);
    return {state, std::move(why), std::move(evidence)};
}

}  // namespace keyhole
