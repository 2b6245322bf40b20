#include "engine/model/families/family.h"

#include "engine/base/error.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace keyhole {

std::span<const Family* const> families() {
    static constexpr std::array<const Family*, 9> kFamilies = {&kLlamaFamily, &kMistralFamily, &kQwen2Family,
                                                               &kQwen3Family, &kGptNeoXFamily, &kGptJFamily,
                                                               &kMptFamily,   &kGpt2Family,    &kOptFamily};
    return kFamilies;
}

const Family& family_of(const ConfigFile& file) {
    const std::vector<std::string> architectures = file.texts("/architectures");
    const std::string model_type = file.text_or("/model_type", "");
    for (const Family* family : families()) {
        const bool named =
            std::find_first_of(architectures.begin(), architectures.end(), family->architectures.begin(),
                               family->architectures.end()) != architectures.end();
        if (named || (architectures.empty() && model_type == family->model_type)) return *family;
    }
    std::string supported;
    for (const Family* family : families()) {
        supported += fmt::format("{}{}", supported.empty() ? "" : ", ", family->architectures.front());
    }
    const std::string found = !architectures.empty() ? fmt::format("{}", fmt::join(architectures, ", "))
                              : !model_type.empty()  ? "model_type " + model_type
                                                     : "no architecture named";
    fail(ErrorCode::unsupported, "cannot load {}: its architecture is {}; this build supports {}",
         file.path().string(), found, supported);
}

}  // namespace keyhole
