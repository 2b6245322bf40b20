#include "engine/model/families/family.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"

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
    if (architectures.empty() && model_type.empty()) {
        fail(ErrorCode::unsupported,
             "cannot load {}: it names no architecture, neither in architectures nor in model_type; this "
             "build "
             "supports {}",
             file.path().string(), supported);
    }
    const std::string found =
        shown_text(architectures.empty() ? "model_type " + model_type
                                         : fmt::format("{}", fmt::join(architectures, ", ")));
    fail(ErrorCode::unsupported, "cannot load {}: its architecture is {}; this build supports {}",
         file.path().string(), found, supported);
}

}  // namespace keyhole
