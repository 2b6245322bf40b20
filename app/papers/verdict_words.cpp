#include "app/papers/figure.h"

#include "app/base/figure_record.h"

#include <fmt/format.h>

namespace keyhole {

std::string verdict_text(const PaperVerdict& verdict) {
    const std::string_view label = verdict_label(verdict_word(verdict.state));
    return label.empty() ? "" : fmt::format("{}: {}", label, verdict.why);
}

std::string verdict_word(PaperVerdict::State state) {
    using State = PaperVerdict::State;
    switch (state) {
        case State::none:
            break;
        case State::holds:
            return "holds";
        case State::fails:
            return "fails";
        case State::mixed:
            return "mixed";
        case State::open:
            return "open";
        case State::few:
            return "few";
        case State::measured:
            return "measured";
        case State::unseen:
            return "unseen";
    }
    return "none";
}

}  // namespace keyhole
