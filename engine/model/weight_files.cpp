#include "engine/model/weight_files.h"

#include "engine/base/error.h"
#include "engine/base/mapping_guard.h"

#include <algorithm>

namespace keyhole {

WeightFiles::WeightFiles(const Model& model) {
    visit_weights(model.weights(), [this](const Weight& weight) {
        const void* const mapping = mapping_of(weight.data);
        if (mapping != nullptr && std::find(mappings_.begin(), mappings_.end(), mapping) == mappings_.end())
            mappings_.push_back(mapping);
    });
}

void WeightFiles::check() const {
    for (const void* mapping : mappings_) check_mapping(mapping);
}

bool WeightFiles::unchanged() const {
    try {
        check();
        return true;
    } catch (const Error&) {
        return false;
    }
}

}  // namespace keyhole
