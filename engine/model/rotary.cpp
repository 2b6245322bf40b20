// Apart from the model's other sources: the CUDA module needs nothing else of them.
#include "engine/model/model.h"

#include <cmath>

namespace keyhole {

std::vector<double> Rotary::frequencies_for(int n_tokens) const {
    if (!changes_with_length() || n_tokens <= switch_length) return inverse_frequency;
    if (dynamic_factor <= 0) return long_inverse_frequency;
    const double longer = dynamic_factor * n_tokens / switch_length - (dynamic_factor - 1.0);
    const double theta = base * std::pow(longer, dims / (dims - 2.0));
    std::vector<double> frequencies;
    for (int i = 0; i < dims / 2; ++i) frequencies.push_back(std::pow(theta, -2.0 * i / dims));
    return frequencies;
}

}  // namespace keyhole
